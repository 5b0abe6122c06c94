{{/* What all pods have in common. */}}
{{- define "tunewright.pod" -}}
serviceAccountName: {{ include "tunewright.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{- define "tunewright.container" -}}
image: {{ include "tunewright.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{- define "tunewright.volumes" -}}
- name: data
  emptyDir:
    sizeLimit: {{ . }}
- name: tmp
  emptyDir:
    sizeLimit: {{ . }}
{{- end -}}

{{- define "tunewright.databaseEnv" -}}
- name: TUNEWRIGHT_DB
  valueFrom:
    secretKeyRef:
      name: {{ include "tunewright.databaseSecret" . }}
      key: {{ if .Values.database.existingSecret }}{{ .Values.database.secretKey }}{{ else }}url{{ end }}
{{- end -}}

{{- define "tunewright.rayEnv" -}}
- name: RAY_AUTH_MODE
  value: token
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "tunewright.rayTokenSecret" . }}
      key: auth_token
{{- end -}}

{{/* Brings the schema to this version's. Any number at once: a lock of the database lets one do it. */}}
{{- define "tunewright.migration" -}}
- name: migrate
  {{- include "tunewright.container" . | nindent 2 }}
  args: [db, upgrade]
  env: {{- include "tunewright.databaseEnv" . | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
{{- end -}}

{{- define "tunewright.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
