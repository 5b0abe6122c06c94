{{/* What all pods have in common. Takes the chart's root and the values `of` the component, as the rest here does. */}}
{{- define "tunewright.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .serviceAccount }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- mergeOverwrite (deepCopy .root.Values.podSecurityContext) (default dict .of.podSecurityContext) | toYaml | nindent 2 }}
{{- range $field := list "priorityClassName" "runtimeClassName" "terminationGracePeriodSeconds" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with get $.of $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tunewright.podMetadata" -}}
labels:
  {{- include "tunewright.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .of.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .of.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tunewright.container" -}}
image: {{ include "tunewright.image" . }}
imagePullPolicy: {{ (include "tunewright.imageValues" . | fromYaml).pullPolicy }}
securityContext: {{- include "tunewright.securityContext" .of.securityContext | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
  {{- if .releaseKey }}
  - name: release-key
    mountPath: /release-key
    readOnly: true
  {{- end }}
  {{- with .of.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .of.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of a container, with what is given for it. */}}
{{- define "tunewright.securityContext" -}}
{{- $confined := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- mergeOverwrite $confined (default dict .) | toYaml -}}
{{- end -}}

{{- define "tunewright.volumes" -}}
- name: data
  emptyDir:
    sizeLimit: {{ .of.scratchSize }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .of.scratchSize }}
{{- with .releaseKey }}
- name: release-key
  secret:
    secretName: {{ . }}
    optional: true
    defaultMode: 0440
{{- end }}
{{- with .of.volumes }}
{{ toYaml . }}
{{- end }}
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
  env:
    {{- include "tunewright.databaseEnv" .root | nindent 4 }}
    {{- with .of.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
{{- end -}}
