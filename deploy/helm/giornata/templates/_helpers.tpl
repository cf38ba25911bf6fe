{{- define "giornata.server" -}}
{{ printf "%s-server" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "giornata.nodes" -}}
{{ printf "%s-nodes" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "giornata.serverLabels" -}}
app.kubernetes.io/name: giornata-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "giornata.nodeLabels" -}}
app.kubernetes.io/name: giornata-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "giornata.ofChart" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "giornata.secret" -}}
{{ .Values.existingSecret | default (include "giornata.server" .) }}
{{- end }}

{{- define "giornata.internalUrl" -}}
http://{{ include "giornata.server" . }}.{{ .Release.Namespace }}.svc{{ if ne (int .Values.service.port) 80 }}:{{ .Values.service.port }}{{ end }}
{{- end }}

{{- define "giornata.publicUrl" -}}
{{- if .Values.server.publicUrl -}}
{{ .Values.server.publicUrl }}
{{- else if .Values.ingress.enabled -}}
{{ ternary "https" "http" (ne .Values.ingress.tlsSecret "") }}://{{ .Values.ingress.host }}
{{- else -}}
{{ include "giornata.internalUrl" . }}
{{- end }}
{{- end }}

{{- define "giornata.account" -}}
{{ ternary (include "giornata.server" .) (.Values.rbac.serviceAccount | default "default") .Values.rbac.create }}
{{- end }}

{{/* What the chart cannot make sense of: said before anything is installed. */}}
{{- define "giornata.check" -}}
{{- if and .Values.persistence.enabled (gt (int .Values.server.replicas) 1) }}
{{- fail "server.replicas is more than 1 with persistence.enabled: SQLite takes one server. Set replicas to 1, or use PostgreSQL and S3." }}
{{- end }}
{{- if not .Values.existingSecret }}
{{- range $name := ternary (list "GIORNATA_ADMIN_KEY" "GIORNATA_SECRETS_KEY") (list "GIORNATA_ADMIN_KEY" "GIORNATA_SECRETS_KEY" "GIORNATA_DATABASE" "GIORNATA_BLOBS") .Values.persistence.enabled }}
{{- if not (get $.Values.secret $name) }}
{{- fail (printf "secret.%s is not set: set it, or name a Secret that has it in existingSecret." $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "giornata.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "giornata.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}
