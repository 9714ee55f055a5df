{{/* The labels of everything. They are also what the Pods are found by, so they never change. */}}
{{- define "clusterip.labels" -}}
app.kubernetes.io/name: clusterip
{{- end }}

{{/* What the Pods of the agents are found by: no Service leads to them. */}}
{{- define "clusterip.agent.labels" -}}
app.kubernetes.io/name: clusterip-agent
{{- end }}

{{/* The namespace of the agents. */}}
{{- define "clusterip.agent.namespace" -}}
{{ .Values.agent.namespace | default (printf "%s-agents" .Release.Namespace) }}
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

{{/* Something where the API server has to show a certificate. */}}
{{- define "clusterip.clientCA" -}}
{{- if .Values.webhook.enabled -}}
{{- with .Values.webhook.clientCA -}}{{ .configMap }}{{ .secret }}{{- end -}}
{{- end -}}
{{- end }}

{{/* What can't work is refused before it is there. */}}
{{- define "clusterip.check" -}}
{{- if and (gt (int .Values.replicas) 1) (ne .Values.claims "lease") -}}
{{- fail (printf "replicas: %d need claims: lease: with claims: %s each gives away addresses that the others do not know of" (int .Values.replicas) .Values.claims) -}}
{{- end -}}
{{- if and (include "clusterip.external" .) (eq (include "clusterip.agent.namespace" .) .Release.Namespace) -}}
{{- fail (printf "agent.namespace: the agents need a namespace of their own, not that of the release, %s" .Release.Namespace) -}}
{{- end -}}
{{- with .Values.webhook.clientCA -}}
{{- if and .configMap .secret -}}
{{- fail "webhook.clientCA: name a configMap or a secret, not both" -}}
{{- end -}}
{{- end -}}
{{- end }}
