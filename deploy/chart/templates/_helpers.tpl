{{/* The labels of all objects. They are also the selector of the Pods, so they never change. */}}
{{- define "clusterip.labels" -}}
app.kubernetes.io/name: clusterip
{{- end }}

{{/* The selector of the agents' Pods. They have labels of their own, so that no Service selects them. */}}
{{- define "clusterip.agent.labels" -}}
app.kubernetes.io/name: clusterip-agent
{{- end }}

{{/* The namespace of the agents. */}}
{{- define "clusterip.agent.namespace" -}}
{{ .Values.agent.namespace | default (printf "%s-agents" .Release.Namespace) }}
{{- end }}

{{/* The name of an image. The argument is a list: the values of the image, and the chart. */}}
{{- define "clusterip.image" -}}
{{- $image := index . 0 -}}
{{- $tag := $image.tag | default (printf "v%s" (index . 1).AppVersion) -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/*
The settings that belong to no pool. The API server does not call the webhook for the namespace of the release, so that
namespace is exempt.
*/}}
{{- define "clusterip.policy" -}}
{{- $policy := deepCopy .Values.policy -}}
{{- if .Values.webhook.enabled -}}
{{- $_ := set $policy "exemptNamespaces" (append ($policy.exemptNamespaces | default list) .Release.Namespace | uniq) -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end }}

{{/* Not empty if clusterip gives Nodes their pod CIDRs. */}}
{{- define "clusterip.nodes" -}}
{{- if .Values.kubewarden.policy -}}
{{- if .Values.kubewarden.nodes }}policy{{ end -}}
{{- else -}}
{{- range .Values.pools.nodes }}{{ .name }} {{ end -}}
{{- end -}}
{{- end }}

{{/* Not empty if there are pools of external addresses. */}}
{{- define "clusterip.external" -}}
{{- if .Values.kubewarden.policy -}}
{{- if .Values.kubewarden.external }}policy{{ end -}}
{{- else -}}
{{- range .Values.pools.external }}{{ .name }} {{ end -}}
{{- end -}}
{{- end }}

{{/* Not empty if the API server must present a certificate. */}}
{{- define "clusterip.clientCA" -}}
{{- if .Values.webhook.enabled -}}
{{- with .Values.webhook.clientCA -}}{{ .configMap }}{{ .secret }}{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses values that can't work, before anything is installed. */}}
{{- define "clusterip.check" -}}
{{- if and (gt (int .Values.replicas) 1) (ne .Values.claims "lease") -}}
{{- fail (printf "replicas: %d need claims: lease: with claims: %s each gives away addresses that the others do not know of" (int .Values.replicas) .Values.claims) -}}
{{- end -}}
{{- if and (include "clusterip.external" .) (eq (include "clusterip.agent.namespace" .) .Release.Namespace) -}}
{{- fail (printf "agent.namespace: the agents need a namespace of their own, not that of the release, %s" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.renumbering.enabled (not .Values.moves.seamless) -}}
{{- fail "renumbering.enabled: the server moves the Services seamlessly, so moves.seamless must be true" -}}
{{- end -}}
{{- if and .Values.kubewarden.policy .Values.webhook.enabled -}}
{{- fail "kubewarden.policy: beside Kubewarden, webhook.enabled must be false" -}}
{{- end -}}
{{- if and .Values.kubewarden.policy .Values.pools.external -}}
{{- fail "pools.external: the settings of kubewarden.policy count: write the pools into that policy, and set kubewarden.external" -}}
{{- end -}}
{{- with .Values.webhook.clientCA -}}
{{- if and .configMap .secret -}}
{{- fail "webhook.clientCA: name a configMap or a secret, not both" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
A file of a kustomization, with the namespaces of this release in place of those of the kustomization. The argument is a
list: the path in `deploy`, and the root context. `clusterip-policy` is also part of other names, so only the places
that name a namespace are replaced.
*/}}
{{- define "clusterip.file" -}}
{{- $path := printf "files/%s" (index . 0) -}}
{{- $root := index . 1 -}}
{{- $text := $root.Files.Get $path | required (printf "the chart has no %s" $path) -}}
{{- $text = $text | replace "clusterip-policy-agents" "{agents}" -}}
{{- range list "namespace: %s\n" "namespace('%s')" "request.namespace == '%s'" "serviceaccount:%s:" "[kube-system, %s]" ".%s.svc" -}}
{{- $text = $text | replace (printf . "clusterip-policy") (printf . $root.Release.Namespace) -}}
{{- end -}}
{{- $text | replace "{agents}" (include "clusterip.agent.namespace" $root) | trimSuffix "\n" -}}
{{- end }}

{{/* The permission to read the settings in a policy of Kubewarden. The argument is the name of the policy. */}}
{{- define "clusterip.kubewarden.rule" -}}
apiGroups: [policies.kubewarden.io]
resources: [clusteradmissionpolicies]
resourceNames: [{{ . }}]
verbs: [get, list, watch]
{{- end }}

{{/*
A Deployment or DaemonSet of a kustomization, as the values change it. The argument is a list: the object, the values
about its Pods, more arguments of its program, and the root context.
*/}}
{{- define "clusterip.workload" -}}
{{- $object := index . 0 -}}
{{- $values := index . 1 -}}
{{- $root := index . 3 -}}
{{- $template := $object.spec.template -}}
{{- $pod := $template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "image" (include "clusterip.image" (list $values.image $root.Chart)) -}}
{{- $_ := set $container "args" (concat $container.args (index . 2) ($values.extraArgs | default list)) -}}
{{- range list
    (list $container "imagePullPolicy" $values.image.pullPolicy)
    (list $container "resources" $values.resources)
    (list $pod "imagePullSecrets" $root.Values.imagePullSecrets)
    (list $pod "priorityClassName" $values.priorityClassName)
    (list $pod "nodeSelector" $values.nodeSelector)
    (list $pod "tolerations" $values.tolerations)
    (list $pod "affinity" $values.affinity)
    (list $template.metadata "annotations" $values.podAnnotations) -}}
{{- if index . 2 -}}
{{- $_ := set (index . 0) (index . 1) (index . 2) -}}
{{- else -}}
{{- $_ := unset (index . 0) (index . 1) -}}
{{- end -}}
{{- end -}}
{{- toYaml $object -}}
{{- end }}
