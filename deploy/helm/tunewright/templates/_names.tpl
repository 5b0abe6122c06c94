{{/* The release's name for its objects: at most 40 characters, since Kubernetes and KubeRay append to it. */}}
{{- define "tunewright.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tunewright.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tunewright.labels" -}}
{{ include "tunewright.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tunewright.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tunewright.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tunewright.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tunewright.databaseSecret" -}}
{{- default (printf "%s-database" (include "tunewright.fullname" .)) .Values.database.existingSecret -}}
{{- end -}}

{{- define "tunewright.rayCluster" -}}
{{- printf "%s-ray" (include "tunewright.fullname" .) -}}
{{- end -}}

{{- define "tunewright.rayAddress" -}}
{{- if .Values.ray.enabled -}}
{{- printf "%s-head-svc:6379" (include "tunewright.rayCluster" .) -}}
{{- else -}}
{{- required "ray.address is needed where ray.enabled is false and tuner.pool is ray" .Values.ray.address -}}
{{- end -}}
{{- end -}}

{{- define "tunewright.rayTokenSecret" -}}
{{- if or .Values.ray.enabled .Values.ray.tokenSecret -}}
{{- default (include "tunewright.rayCluster" .) .Values.ray.tokenSecret -}}
{{- else -}}
{{- fail "ray.tokenSecret is needed where ray.enabled is false and tuner.pool is ray" -}}
{{- end -}}
{{- end -}}
