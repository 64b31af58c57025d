{{- define "specctl.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "specctl.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "specctl.labels" -}}
{{ include "specctl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "specctl.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "specctl.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "specctl.tokenSecret" -}}
{{- if .Values.token.existingSecret }}{{ .Values.token.existingSecret }}{{ else if .Values.token.value }}{{ include "specctl.name" . }}-token{{ end }}
{{- end }}

{{/* The namespaces whose pods are listed. */}}
{{- define "specctl.namespaces" -}}
{{- $found := list }}
{{- range .Values.targets.targets }}{{- with .kubernetes }}{{- $found = append $found (default $.Release.Namespace .namespace) }}{{- end }}{{- end }}
{{- $found | uniq | toJson }}
{{- end }}

{{/* The targets file, each namespace filled in. */}}
{{- define "specctl.targets" -}}
{{- $targets := list }}
{{- range .Values.targets.targets }}
{{- $one := deepCopy . }}
{{- with $one.kubernetes }}{{- $_ := set . "namespace" (default $.Release.Namespace .namespace) }}{{- end }}
{{- $targets = append $targets $one }}
{{- end }}
{{- dict "frozen" .Values.frozen "policies" .Values.targets.policies "targets" $targets | toYaml }}
{{- end }}
