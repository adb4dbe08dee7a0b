{{/* Parts of objects that depend on values; names and labels are in _helpers.tpl. */}}

{{/* A setting as the environment carries it: lists with commas, objects as JSON, integers whole. */}}
{{- define "weir.settingValue" -}}
{{- if kindIs "slice" . -}}
{{ join "," . }}
{{- else if kindIs "map" . -}}
{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{- define "weir.operatorEnv" -}}
- {name: WEIR_OPERATOR_HOST, value: 0.0.0.0}
- {name: WEIR_OPERATOR_PORT, value: "8081"}
- {name: WEIR_OPERATOR_LOG_LEVEL, value: {{ .Values.operator.logLevel }}}
- name: WEIR_OPERATOR_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: WEIR_OPERATOR_LEASE_NAME, value: {{ include "weir.fullname" . }}-operator}
- {name: WEIR_OPERATOR_CONTROL_PLANE_URL, value: {{ include "weir.controlplaneURL" . | quote }}}
- {name: WEIR_OPERATOR_CONTROL_PLANE_TOKEN_FILE, value: /var/run/secrets/weir/token}
- {name: WEIR_OPERATOR_VLLM_IMAGE, value: {{ include "weir.image" (dict "root" . "image" .Values.images.vllmAgent) | quote }}}
- {name: WEIR_OPERATOR_TORCH_IMAGE, value: {{ include "weir.image" (dict "root" . "image" .Values.images.torchAgent) | quote }}}
- {name: WEIR_OPERATOR_IMAGE_PULL_POLICY, value: {{ .Values.images.pullPolicy }}}
{{- with .Values.images.pullSecrets }}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
- {name: WEIR_OPERATOR_IMAGE_PULL_SECRETS, value: {{ join "," $names | quote }}}
{{- end }}
- {name: WEIR_OPERATOR_DNS_PORTS, value: {{ join "," .Values.networkPolicy.dns.ports | quote }}}
{{- with .Values.monitoring.podMonitor.labels }}
- {name: WEIR_OPERATOR_POD_MONITOR_LABELS, value: {{ toJson . | quote }}}
{{- end }}
{{- range $key, $value := .Values.operator.settings }}
- {name: WEIR_OPERATOR_{{ $key | upper }}, value: {{ include "weir.settingValue" $value | quote }}}
{{- end }}
{{- end }}

{{- define "weir.controlplaneEnv" -}}
- {name: WEIR_HOST, value: 0.0.0.0}
- {name: WEIR_PORT, value: "8080"}
- {name: WEIR_LOG_LEVEL, value: {{ .Values.controlplane.logLevel }}}
- {name: WEIR_DATA_DIR, value: /var/lib/weir}
- {name: WEIR_ADMIN_KEY_FILE, value: /var/run/secrets/weir/admin.key}
- {name: WEIR_FILES_URL, value: {{ .Values.files.url | default "file:///var/lib/weir-files" | quote }}}
- name: WEIR_DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ include "weir.databaseSecret" . | quote }}, key: {{ .Values.database.key | quote }}}
{{- if .Values.redis.enabled }}
- name: WEIR_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ include "weir.redisSecret" . | quote }}, key: {{ .Values.redis.key | quote }}}
{{- end }}
{{- if not (hasKey (.Values.controlplane.settings | default dict) "kubernetes_api_url") }}
- {name: WEIR_KUBERNETES_API_URL, value: "https://kubernetes.default.svc"}
{{- end }}
- {name: WEIR_OPERATOR_SERVICE_ACCOUNT, value: {{ printf "%s/%s-operator" .Release.Namespace (include "weir.fullname" .) | quote }}}
{{- if not (get (.Values.controlplane.settings | default dict) "public_url") }}
- {name: WEIR_PUBLIC_URL, value: {{ include "weir.controlplaneURL" . | quote }}} # else links in a status have no host
{{- end }}
{{- range $key, $value := .Values.controlplane.settings }}
- {name: WEIR_{{ $key | upper }}, value: {{ include "weir.settingValue" $value | quote }}}
{{- end }}
{{- end }}

{{/* The environment of a component: the chart's own, then what is given besides, each name once.
     Call with (dict "own" YAML "component" NAME "extra" LIST). */}}
{{- define "weir.env" -}}
{{- $known := dict -}}
{{- range fromYamlArray .own }}{{ $known = set $known (upper .name) true }}{{ end -}}
{{ .own }}
{{- range $item := .extra }}
{{- if hasKey $known (upper $item.name) }}
{{- fail (printf "%s.extraEnv: %s is set already, by the chart or above: leave it out, and give its value where the chart has one (%s.settings, for most)" $.component $item.name $.component) }}
{{- end }}
{{- $known = set $known (upper $item.name) true }}
{{ toYaml (list $item) }}
{{- end }}
{{- end }}

{{- define "weir.egressDNS" -}}
- ports:
  {{- range .Values.networkPolicy.dns.ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- end }}

{{/* The API server is no pod that could be selected: by address where known, else by port alone. */}}
{{- define "weir.egressAPIServer" -}}
- ports:
  {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ . }}}
  {{- end }}
  {{- with .Values.networkPolicy.apiServer.cidrs }}
  to:
  {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- end }}
{{- end }}

{{/* The spec of a Job that runs `python -m weir_operator.crds`; call with
     (dict "root" $ "account" NAME "component" NAME "deadline" SECONDS "args" LIST). */}}
{{- define "weir.hookJob" -}}
backoffLimit: 3
activeDeadlineSeconds: {{ .deadline }}
template:
  metadata:
    labels: {{ include "weir.labels" . | nindent 6 }}
  spec:
    serviceAccountName: {{ .account }}
    automountServiceAccountToken: true
    enableServiceLinks: false
    restartPolicy: Never
    securityContext: {{ include "weir.podSecurity" (dict "user" 10001) | nindent 6 }}
    {{- with .root.Values.images.pullSecrets }}
    imagePullSecrets: {{ toYaml . | nindent 6 }}
    {{- end }}
    {{- with .root.Values.operator.nodeSelector }}
    nodeSelector: {{ toYaml . | nindent 6 }}
    {{- end }}
    {{- with .root.Values.operator.tolerations }}
    tolerations: {{ toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: {{ .component }}
        image: {{ include "weir.image" (dict "root" .root "image" .root.Values.images.operator) }}
        imagePullPolicy: {{ .root.Values.images.pullPolicy }}
        securityContext: {{ include "weir.containerSecurity" .root | nindent 10 }}
        command: [python, -m, weir_operator.crds]
        args: {{ toJson .args }}
        resources: {{ toYaml .root.Values.hooks.resources | nindent 10 }}
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
    volumes:
      - name: tmp
        emptyDir: {sizeLimit: 16Mi}
{{- end }}
