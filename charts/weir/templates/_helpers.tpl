{{- define "weir.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The first part of the names of objects. A Service's starts with a letter and has no dots. */}}
{{- define "weir.fullname" -}}
{{- $name := include "weir.longName" . -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) -}}
{{- fail (printf "%s: names of objects must start with a letter and hold only letters, digits and '-': set fullnameOverride" $name) -}}
{{- end -}}
{{ $name }}
{{- end }}

{{/* Room is left for suffixes: an object's name has at most 63 characters. */}}
{{- define "weir.longName" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := include "weir.name" . -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What selects the pods of a component; call with (dict "root" $ "component" NAME). A release may be a number. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* A map on top of another, each key once: tools that render the chart again refuse a second one;
     call with (dict "under" YAML "over" MAP). */}}
{{- define "weir.onTop" -}}
{{ toYaml (mergeOverwrite (fromYaml .under) (.over | default dict)) }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.onTop" (dict "under" (include "weir.ownLabels" .) "over" .root.Values.commonLabels) }}
{{- end }}

{{- define "weir.ownLabels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: weir
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* An image reference; call with (dict "root" $ "image" .Values.images.NAME). */}}
{{- define "weir.image" -}}
{{- $registry := .root.Values.images.registry | default "" | trimSuffix "/" -}}
{{- $name := .image.repository -}}
{{- if $registry }}{{ $name = printf "%s/%s" $registry .image.repository }}{{ end -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $name .image.digest }}
{{- else -}}
{{ printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) }}
{{- end -}}
{{- end }}

{{/* The pod-level part of restricted pod security; call with (dict "user" UID). */}}
{{- define "weir.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .user }}
runAsGroup: {{ int64 .user }}
fsGroup: {{ int64 .user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "weir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where pods run; call with (dict "root" $ "component" NAME "values" .Values.NAME). */}}
{{- define "weir.placement" -}}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{ include "weir.selector" $ | nindent 8 }}
{{- end }}
{{- end }}

{{- define "weir.controlplaneURL" -}}
{{ default (printf "http://%s-controlplane.%s.svc:%v" (include "weir.fullname" .) .Release.Namespace .Values.controlplane.service.port) .Values.controlplane.url | trimSuffix "/" }}
{{- end }}

{{- define "weir.adminKeySecret" -}}
{{ default (printf "%s-admin-key" (include "weir.fullname" .)) .Values.adminKey.existingSecret }}
{{- end }}

{{- define "weir.databaseSecret" -}}
{{ default (printf "%s-database" (include "weir.fullname" .)) .Values.database.existingSecret }}
{{- end }}

{{- define "weir.redisSecret" -}}
{{ default (printf "%s-redis" (include "weir.fullname" .)) .Values.redis.existingSecret }}
{{- end }}

{{- define "weir.filesClaim" -}}
{{ default (printf "%s-files" (include "weir.fullname" .)) .Values.files.volume.existingClaim }}
{{- end }}

{{/* "true" when the files are on a volume of one node, which all replicas of the control plane share. */}}
{{- define "weir.filesOnOneNode" -}}
{{- if and (not .Values.files.url) (eq .Values.files.volume.accessMode "ReadWriteOnce") -}}
true
{{- end -}}
{{- end }}

{{/* "true" when an object of the Prometheus operator is wanted; call with (dict "root" $ "create" V). */}}
{{- define "weir.monitor" -}}
{{- if or (eq .create "always") (and (eq .create "auto") (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
true
{{- end -}}
{{- end }}

{{/* What must stay when the release goes, unless its data shall go too. */}}
{{- define "weir.keep" -}}
{{- if not .Values.uninstall.deleteData }}
helm.sh/resource-policy: keep
{{- end }}
{{- end }}

{{/* A value of a Secret of this release as it is in the cluster, empty when it is not there;
     call with (dict "root" $ "name" NAME "key" KEY). */}}
{{- define "weir.kept" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- if and $secret (hasKey $secret "data") -}}
{{ get $secret.data .key | default "" | b64dec }}
{{- end -}}
{{- end }}

{{/* Refuses the key of a store's URL under which the chart's own Secret has the password;
     call with (dict "value" NAME "key" KEY). */}}
{{- define "weir.checkKey" -}}
{{- if eq .key "password" -}}
{{- fail (printf "%s.key: password is the key of the password itself in the Secret that the chart makes: take another one, or name a Secret of your own in %s.existingSecret" .value .value) -}}
{{- end -}}
{{- end }}

{{/* The password of the small Redis, the same in every template of one rendering. */}}
{{- define "weir.redisPassword" -}}
{{- if not (hasKey .Values.redis "password") -}}
{{- $kept := include "weir.kept" (dict "root" . "name" (include "weir.redisSecret" .) "key" "password") -}}
{{- $_ := set .Values.redis "password" (default (randAlphaNum 40) $kept) -}}
{{- end -}}
{{ .Values.redis.password }}
{{- end }}

{{/* An annotation that differs when that password does: server and clients read it when they start. */}}
{{- define "weir.redisChecksum" -}}
{{- if and .Values.redis.enabled (not .Values.redis.existingSecret) -}}
weir.dev/redis-password: {{ include "weir.redisPassword" . | sha256sum | trunc 16 | quote }}
{{- end -}}
{{- end }}
