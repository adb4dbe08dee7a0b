{{/* Volumes are made once: what the API server would refuse of a later change is refused by its value. */}}

{{/* A quantity as bytes, to compare two of them. */}}
{{- define "weir.bytes" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $units = merge $units (dict "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "m" 1e-3) -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{ mulf (trimSuffix $unit . | float64) (get $units $unit | default 1) }}
{{- end }}

{{/* Refuses a value that would change what a volume is; call with
     (dict "value" NAME "given" V "live" V "remedy" TEXT). */}}
{{- define "weir.keepsVolume" -}}
{{- if and .given .live (ne .given .live) -}}
{{- fail (printf "%s: %s, and the volume was made with %s, which cannot change: set it back, or %s" .value .given .live .remedy) -}}
{{- end -}}
{{- end }}

{{/* Refuses files where each pod has its own, which go with it and which no other pod sees. */}}
{{- define "weir.checkFilesURL" -}}
{{- if regexMatch "^(file|local|memory)://" (.Values.files.url | default "") -}}
{{- fail (printf "files.url: %s is in each pod alone, and goes with it: name an object store, or leave it empty for a volume that all pods share (files.volume)" .Values.files.url) -}}
{{- end -}}
{{- end }}

{{/* The claim of the files as it is asked for, against the one in the cluster. */}}
{{- define "weir.checkFilesVolume" -}}
{{- $volume := .Values.files.volume -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "weir.filesClaim" .) -}}
{{- if and $claim (not $claim.metadata.deletionTimestamp) -}}
{{- $remedy := "copy the files to a claim of your own and name it in files.volume.existingClaim" -}}
{{- $live := $claim.spec.resources.requests.storage -}}
{{- include "weir.keepsVolume" (dict "value" "files.volume.accessMode" "given" $volume.accessMode "live" (first $claim.spec.accessModes) "remedy" $remedy) -}}
{{- include "weir.keepsVolume" (dict "value" "files.volume.storageClassName" "given" $volume.storageClassName "live" $claim.spec.storageClassName "remedy" $remedy) -}}
{{- if lt (include "weir.bytes" $volume.size | float64) (include "weir.bytes" $live | float64) -}}
{{- fail (printf "files.volume.size: %s, and the volume has %s and cannot shrink: set it to %s, or %s" $volume.size $live $live $remedy) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The volume of the small PostgreSQL as it is asked for, against the StatefulSet in the cluster. */}}
{{- define "weir.checkDatabaseVolume" -}}
{{- $storage := .Values.database.inChart.storage -}}
{{- $name := printf "%s-postgresql" (include "weir.fullname" .) -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $set -}}
{{- $claim := (first $set.spec.volumeClaimTemplates).spec -}}
{{- $live := $claim.resources.requests.storage -}}
{{- $again := printf "kubectl -n %s delete statefulset %s --cascade=orphan" .Release.Namespace $name -}}
{{- include "weir.keepsVolume" (dict "value" "database.inChart.storage.storageClassName" "given" (default "none" $storage.storageClassName) "live" (default "none" $claim.storageClassName) "remedy" "move to a database of your own (database.existingSecret)") -}}
{{- if ne (include "weir.bytes" $storage.size) (include "weir.bytes" $live) -}}
{{- fail (printf "database.inChart.storage.size: %s, and StatefulSet %s has %s, which cannot change: set it back, or let the volume grow (`kubectl -n %s patch pvc data-%s-0 -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"%s\"}}}}'`, where its StorageClass allows it), then `%s`, which stops nothing, and upgrade again" $storage.size $name $live .Release.Namespace $name $storage.size $again) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses an upgrade after which a volume would not be rendered any more, where it would go with
     that: uninstall.deleteData speaks of uninstalling. */}}
{{- define "weir.checkDataStays" -}}
{{- $remedy := "upgrade once with uninstall.deleteData=false and nothing else changed, then again: the volume stays then, and can be copied" -}}
{{- if .Values.database.existingSecret -}}
{{- $name := printf "%s-postgresql" (include "weir.fullname" .) -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name | default dict -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (printf "data-%s-0" $name) | default dict -}}
{{- if or (eq "Delete" (dig "spec" "persistentVolumeClaimRetentionPolicy" "whenDeleted" "" $set)) (dig "metadata" "ownerReferences" list $claim) -}}
{{- fail (printf "database.existingSecret: StatefulSet %s would go, and the database's volume with it, since uninstall.deleteData is true: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- if or .Values.files.url .Values.files.volume.existingClaim -}}
{{- $name := printf "%s-files" (include "weir.fullname" .) -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name | default dict -}}
{{- $notes := dig "metadata" "annotations" dict $claim -}}
{{- if and (ne $name .Values.files.volume.existingClaim) (eq (get $notes "meta.helm.sh/release-name") .Release.Name) (not (hasKey $notes "helm.sh/resource-policy")) -}}
{{- fail (printf "%s: the files' volume %s would be deleted, since uninstall.deleteData is true: %s" (ternary "files.url" "files.volume.existingClaim" (not (empty .Values.files.url))) $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- end }}
