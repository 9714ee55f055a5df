{{/* The labels of everything. They are also what the Pods are found by, so they never change. */}}
{{- define "clusterip.labels" -}}
app.kubernetes.io/name: clusterip
{{- end }}

{{/* What the Pods of the agents are found by: no Service leads to them. */}}
{{- define "clusterip.agent.labels" -}}
app.kubernetes.io/name: clusterip-agent
{{- end }}

{{/* The name of an image, of a list: its values, and the chart's. */}}
{{- define "clusterip.image" -}}
{{- $image := index . 0 -}}
{{- $tag := $image.tag | default (printf "v%s" (index . 1).AppVersion) -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* The settings as they are used: the webhook is not asked about its own namespace, so its Services stay where they are. */}}
{{- define "clusterip.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.webhook.enabled -}}
{{- $services := $settings.services | default dict -}}
{{- $named := hasKey $services "exemptNamespaces" | ternary $services.exemptNamespaces (list "kube-system") -}}
{{- $exempt := append ($named | default list) .Release.Namespace | uniq -}}
{{- $_ := set $settings "services" (set $services "exemptNamespaces" $exempt) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* Something where the settings have pools of Nodes. */}}
{{- define "clusterip.nodes" -}}
{{- range (.Values.settings.nodes | default dict).pools }}{{ .name }} {{ end -}}
{{- end }}

{{/* The same for pools of external addresses. */}}
{{- define "clusterip.external" -}}
{{- range (.Values.settings.external | default dict).pools }}{{ .name }} {{ end -}}
{{- end }}

{{/* What can't work is refused before it is there. */}}
{{- define "clusterip.check" -}}
{{- if and (gt (int .Values.replicas) 1) (ne .Values.claims "lease") -}}
{{- fail (printf "replicas: %d need claims: lease: with claims: %s each gives away addresses that the others do not know of" (int .Values.replicas) .Values.claims) -}}
{{- end -}}
{{- end }}
