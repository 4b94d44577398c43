{{/* Names and labels that several objects share. */}}

{{/* The release's name, with the chart's in it once. 52 characters leave room for what objects append. */}}
{{- define "pagefleet.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Names of cluster-wide objects hold the namespace too: two releases of one name never share them. */}}
{{- define "pagefleet.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "pagefleet.fullname" .) }}
{{- end }}

{{- define "pagefleet.serviceAccountName" -}}
{{- default (include "pagefleet.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{/* The name is fixed: the network policies of engines let these pods, and no others, reach the admin port. */}}
{{- define "pagefleet.selectorLabels" -}}
app.kubernetes.io/name: pagefleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "pagefleet.labels" -}}
{{ include "pagefleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pagefleet
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "pagefleet.autoscalerServiceAccountName" -}}
{{- default (printf "%s-autoscaler" (include "pagefleet.fullname" .)) .Values.autoscaler.serviceAccount.name }}
{{- end }}

{{- define "pagefleet.autoscalerSelectorLabels" -}}
app.kubernetes.io/name: pagefleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: autoscaler
{{- end }}

{{- define "pagefleet.autoscalerLabels" -}}
{{ include "pagefleet.autoscalerSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pagefleet
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image by digest where one is given, else by tag, else by the chart's appVersion. */}}
{{- define "pagefleet.image" -}}
{{- $image := .image }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default .default $image.tag) }}
{{- end }}
{{- end }}

{{/*
What the operator does in the namespaces that it serves: granted by a ClusterRole, or by a Role when namespaced.
Each verb is one that it uses. Server-side apply of a new object needs patch and create.
*/}}
{{- define "pagefleet.serviceRules" -}}
- apiGroups: [serving.pagefleet.io]
  resources: [inferenceservices]
  verbs: [list, watch]
- apiGroups: [serving.pagefleet.io]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [serving.pagefleet.io]
  resources: [inferenceservices/finalizers] # owner references that hold up a deletion, where admission checks them
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch] # which of them leave, and drain before
- apiGroups: [apps]
  resources: [controllerrevisions, replicasets]
  verbs: [list, watch, create, patch, delete] # of revisions that are done with; the rest goes with its owner
- apiGroups: [""]
  resources: [serviceaccounts, services]
  verbs: [list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch]
- apiGroups: [monitoring.coreos.com] # where the cluster has it
  resources: [servicemonitors]
  verbs: [list, watch, create, patch]
- apiGroups: [inference.networking.k8s.io] # where the cluster has it
  resources: [inferencepools]
  verbs: [list, watch, create, patch]
{{- end }}

{{/*
What the autoscaler does in the namespaces that it serves: it changes the number of replicas, and nothing else.
*/}}
{{- define "pagefleet.autoscalerRules" -}}
- apiGroups: [serving.pagefleet.io]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.pagefleet.io]
  resources: [inferenceservices/scale, inferenceservices/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
