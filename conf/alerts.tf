# Alerts of Cloud Monitoring on a subscription that a query reads. They continue if the query does not run.
# The metrics: https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-pubsub

# The subscription, and the value of each metric above which it is an alert.
locals {
  subscription = "orders-spark" # of this project
  channels     = []             # names of google_monitoring_notification_channel
  alerts = {
    "oldest_unacked_message_age" = { above = 900, duration = "300s", text = "Messages have waited for 15 minutes: the query is behind or does not run." }
    "dead_letter_message_count"  = { above = 0, duration = "0s", text = "Pub/Sub's dead-letter policy has given up messages: `pubsub-spark dead-letters ls`." }
    "expired_ack_deadlines_count" = { above = 1000, duration = "300s", text = "Leases end before their acks: the query stands still, or its uplink is too slow." }
  }
}

# One policy for each metric. It alerts if each minute's value is above the threshold for so long. A dead letter alerts at
# once: it is counted in one minute only.
resource "google_monitoring_alert_policy" "subscription" {
  for_each              = local.alerts
  display_name          = "Pub/Sub to Spark: ${each.key} of ${local.subscription}"
  combiner              = "OR"
  notification_channels = local.channels
  conditions {
    display_name = each.key
    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND resource.labels.subscription_id = \"${local.subscription}\" AND metric.type = \"pubsub.googleapis.com/subscription/${each.key}\""
      comparison      = "COMPARISON_GT"
      threshold_value = each.value.above
      duration        = each.value.duration
      aggregations {
        alignment_period   = "60s"
        per_series_aligner = each.key == "oldest_unacked_message_age" ? "ALIGN_MAX" : "ALIGN_DELTA"
      }
    }
  }
  documentation {
    content = each.value.text
  }
}
