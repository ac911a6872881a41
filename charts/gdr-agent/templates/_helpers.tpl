{{- define "gdr-agent.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Chart.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "gdr-agent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gdr-agent.labels" -}}
{{ include "gdr-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gdr-agent.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* node, nfd or none: only the first needs rights on the API. */}}
{{- define "gdr-agent.publish" -}}
{{ dig "publish" "mode" "node" .Values.config }}
{{- end }}

{{- define "gdr-agent.prefix" -}}
{{ dig "publish" "prefix" "gpudirect-rdma" .Values.config }}
{{- end }}

{{- /* The port of http.listen; empty where that is null. (Helm drops a null from values, so it is told by text.) */}}
{{- define "gdr-agent.port" -}}
{{ dig "http" "listen" "[::]:9477" .Values.config | default "" | regexFind "[0-9]+$" }}
{{- end }}

{{- define "gdr-agent.policy" -}}
{{- if and (eq (include "gdr-agent.publish" .) "node") (or (eq (toString .Values.policy.enabled) "true") (and (eq (toString .Values.policy.enabled) "auto") (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"))) }}true{{ end }}
{{- end }}

{{- define "gdr-agent.simulated" -}}
{{- if or .Values.simulate.profile .Values.simulate.yaml }}true{{ end }}
{{- end }}

{{- define "gdr-agent.configuration" -}}
{{ toYaml (merge (dict "apiVersion" "gdr-agent/v1" "kind" "Configuration") .Values.config) }}
{{- end }}

{{- /* How long the first words of an install take: 0.72 s for each node, so that all of them ask for about four requests
a second, and 12 minutes at most. Each node has a Lease, the smallest object that tells how many there are; a rendering without
a cluster sees none. It matters to agents that start for the first time, so that it rolls no pod when the cluster has grown. */}}
{{- define "gdr-agent.spread" -}}
{{- $nodes := len (dig "items" list (lookup "coordination.k8s.io/v1" "Lease" "kube-node-lease" "")) -}}
{{ dig "publish" "spread" (printf "%ds" (max 3 (min 720 (div (mul $nodes 18) 25)))) .Values.config }}
{{- end }}

{{- /* With what the cluster adds to it. */}}
{{- define "gdr-agent.effective" -}}
{{- $publish := merge (dict "spread" (include "gdr-agent.spread" .)) (dig "publish" dict .Values.config) -}}
{{ toYaml (merge (dict "publish" $publish) (fromYaml (include "gdr-agent.configuration" .))) }}
{{- end }}

{{- /* Linux, and not a node that only pretends to be one. */}}
{{- define "gdr-agent.realNode" -}}
- { key: kubernetes.io/os, operator: In, values: [linux] }
- { key: type, operator: NotIn, values: [virtual-kubelet] }
- { key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate] }
{{- end }}

{{- define "gdr-agent.affinity" -}}
{{- if .Values.affinity }}
{{- toYaml .Values.affinity }}
{{- else }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- if or (eq .Values.nodes "all") (include "gdr-agent.simulated" .) }}
      - matchExpressions:
          {{- include "gdr-agent.realNode" . | nindent 10 }}
      {{- else }}
      {{- /* One of them is enough. */}}
      {{- range list
        "{ key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ['true'] }"
        "{ key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ['true'] }"
        "{ key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ['true'] }"
        "{ key: nvidia.com/gpu.present, operator: In, values: ['true'] }"
        "{ key: cloud.google.com/gke-accelerator, operator: Exists }"
        "{ key: k8s.amazonaws.com/accelerator, operator: Exists }"
        "{ key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia] }"
        "{ key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia] }"
        "{ key: accelerator, operator: In, values: [nvidia] }"
      }}
      - matchExpressions:
          - {{ . }}
          {{- include "gdr-agent.realNode" $ | nindent 10 }}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
