# The rights of a query that reads the subscription `flights`, decodes by the topic's schema and writes to the topic `arrivals`,
# as google_* resources of Terraform. Untried: there is no project here. Replace the names in the locals.

# One service account for the driver and the executors: both talk to Pub/Sub and to the staging area.
locals {
  project = "my-project"
  member  = "serviceAccount:spark@my-project.iam.gserviceaccount.com"
}

# Pull, acknowledge, extend leases.
resource "google_pubsub_subscription_iam_member" "read" {
  project      = local.project
  subscription = "flights"
  role         = "roles/pubsub.subscriber"
  member       = local.member
}

# Look at the subscription, its topic and the schema: `decode=topic`, `encode=topic`, and the checks at the start.
resource "google_project_iam_member" "look" {
  project = local.project
  role    = "roles/pubsub.viewer"
  member  = local.member
}

# Publish rows, and dead letters when `deadLetterTopic` is this topic.
resource "google_pubsub_topic_iam_member" "write" {
  project = local.project
  topic   = "arrivals"
  role    = "roles/pubsub.publisher"
  member  = local.member
}

# `stagingLocation`: list, read, create and delete objects.
resource "google_storage_bucket_iam_member" "stage" {
  bucket = "my-bucket"
  role   = "roles/storage.objectUser"
  member = local.member
}
