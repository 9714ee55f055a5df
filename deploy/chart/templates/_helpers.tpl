{{/* The labels of everything. They are also what the Pods are found by, so they never change. */}}
{{- define "clusterip.labels" -}}
app.kubernetes.io/name: clusterip
{{- end }}

{{- define "clusterip.image" -}}
{{- $tag := .Values.image.tag | default (printf "v%s" .Chart.AppVersion) -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* The settings as they are used: the webhook is not asked about its own namespace, so its Services stay where they are. */}}
{{- define "clusterip.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.webhook.enabled -}}
{{- $services := $settings.services | default dict -}}
{{- $exempt := append ($services.exemptNamespaces | default list) .Release.Namespace | uniq -}}
{{- $_ := set $settings "services" (set $services "exemptNamespaces" $exempt) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* Something where the settings have pools of Nodes. */}}
{{- define "clusterip.nodes" -}}
{{- range (.Values.settings.nodes | default dict).pools }}{{ .name }} {{ end -}}
{{- end }}

{{/* What can't work is refused before it is there. */}}
{{- define "clusterip.check" -}}
{{- if and (gt (int .Values.replicas) 1) (ne .Values.claims "lease") -}}
{{- fail (printf "replicas: %d need claims: lease: with claims: %s each gives away addresses that the others do not know of" (int .Values.replicas) .Values.claims) -}}
{{- end -}}
{{- end }}
