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

{{/*
The image of a component: the chart's, or for a group with GPUs the one with CUDA, with what is given for the component
itself. A digest belongs to the repository and tag that it stands beside.
*/}}
{{- define "tunewright.imageValues" -}}
{{- $image := deepCopy .root.Values.image -}}
{{- if not $image.tag -}}
{{- $_ := set $image "tag" .root.Chart.AppVersion -}}
{{- end -}}
{{- $given := list (default dict .of.image) -}}
{{- if include "tunewright.gpus" .of -}}
{{- $_ := set $image "tag" (printf "%s-cuda" $image.tag) -}}
{{- $_ := set $image "digest" "" -}}
{{- $given = prepend $given .root.Values.cudaImage -}}
{{- end -}}
{{- range $own := $given -}}
{{- if or $own.repository $own.tag -}}
{{- $_ := set $image "digest" "" -}}
{{- end -}}
{{- range $key, $value := $own -}}
{{- if $value -}}
{{- $_ := set $image $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $image -}}
{{- end -}}

{{- define "tunewright.image" -}}
{{- $image := include "tunewright.imageValues" . | fromYaml -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository $image.tag -}}
{{- end -}}
{{- end -}}

{{/* Whether pods have GPUs: something, or nothing. KubeRay knows them by the same names. */}}
{{- define "tunewright.gpus" -}}
{{- range $name, $amount := (dig "resources" "limits" (dict) .) -}}
{{- if regexMatch "gpu$|^nvidia[.]com/mig-" $name -}}yes{{- end -}}
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

{{- define "tunewright.releaseKeySecret" -}}
{{- default (printf "%s-release-key" (include "tunewright.fullname" .)) .Values.api.releaseKeySecret -}}
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

{{/* Whether a group of Ray's nodes grows and shrinks: something, or nothing. Refuses sizes that contradict each other. */}}
{{- define "tunewright.grows" -}}
{{- if hasKey . "maxReplicas" -}}
{{- $least := default .replicas .minReplicas -}}
{{- if or (lt (int .replicas) (int $least)) (gt (int .replicas) (int .maxReplicas)) -}}
{{- fail (printf "ray.workerGroups: %s has replicas %v, which must be from minReplicas %v to maxReplicas %v" .name .replicas $least .maxReplicas) -}}
{{- end -}}
{{- if lt (int $least) 1 -}}
{{- fail (printf "ray.workerGroups: %s has replicas 0: a group that grows keeps at least one node, which tells what can be tuned for there" .name) -}}
{{- end -}}
yes
{{- else if hasKey . "minReplicas" -}}
{{- fail (printf "ray.workerGroups: %s has minReplicas and no maxReplicas: give both for a group that grows, or replicas alone" .name) -}}
{{- end -}}
{{- end -}}

{{/* Whether the cluster has an autoscaler: something, or nothing. */}}
{{- define "tunewright.autoscaler" -}}
{{- if and .Values.ray.enabled (eq .Values.tuner.pool "ray") -}}
{{- range .Values.ray.workerGroups -}}
{{- include "tunewright.grows" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
