{{- define "rlproxy.name" -}}
{{- if contains "rlproxy" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-rlproxy{{ end }}
{{- end }}

{{- define "rlproxy.selector" -}}
app.kubernetes.io/name: rlproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rlproxy.labels" -}}
{{ include "rlproxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "rlproxy.vllmUrl" -}}
{{- if .Values.vllm.enabled }}dns://{{ include "rlproxy.name" . }}-vllm:8000{{ else }}{{ .Values.vllm.url }}{{ end }}
{{- end }}

{{- define "rlproxy.hosts" -}}
{{- $name := include "rlproxy.name" . -}}
{{- $own := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- $all := concat $own .Values.hosts -}}
{{- if .Values.ingress.enabled }}{{ $all = append $all .Values.ingress.host }}{{ end -}}
{{- $all | uniq | toJson -}}
{{- end }}

{{- define "rlproxy.placement" -}}
{{- with .Values.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
