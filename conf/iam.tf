# The rights of docs/clusters.md "Permissions", as google_* resources of Terraform, for a query that reads the subscription
# `flights` of the topic `departures`, decodes by the topic's schema and writes to the topic `arrivals`. Rows that cannot be
# decoded go to the topic `malformed` (`deadLetterTopic`), messages that were delivered too often to the topic `undelivered`
# (the subscription's dead-letter policy). We have not tried it, because we have no project. Replace the names in the locals.

# One service account for the driver and the executors: both talk to Pub/Sub and to the staging area. The service agents are
# Google's own accounts in the project, named by its number.
locals {
  project       = "my-project"
  member        = "serviceAccount:spark@my-project.iam.gserviceaccount.com"
  pubsub_agent  = "serviceAccount:service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com"
  storage_agent = "serviceAccount:service-123456789012@gs-project-accounts.iam.gserviceaccount.com"
}

# Pull, acknowledge, extend leases.
resource "google_pubsub_subscription_iam_member" "read" {
  project      = local.project
  subscription = "flights"
  role         = "roles/pubsub.subscriber"
  member       = local.member
}

# Read the settings of the subscription, its topic and the schema: `decode=topic`, `encode=topic`, and the checks at the start.
resource "google_project_iam_member" "look" {
  project = local.project
  role    = "roles/pubsub.viewer"
  member  = local.member
}

# Publish rows.
resource "google_pubsub_topic_iam_member" "write" {
  project = local.project
  topic   = "arrivals"
  role    = "roles/pubsub.publisher"
  member  = local.member
}

# Publish the dead letters of the option `deadLetterTopic`.
resource "google_pubsub_topic_iam_member" "malformed" {
  project = local.project
  topic   = "malformed"
  role    = "roles/pubsub.publisher"
  member  = local.member
}

# The dead-letter policy of a subscription: Pub/Sub's service agent publishes to the policy's topic.
resource "google_pubsub_topic_iam_member" "undelivered" {
  project = local.project
  topic   = "undelivered"
  role    = "roles/pubsub.publisher"
  member  = local.pubsub_agent
}

# Then the agent acknowledges the message on the subscription itself. Without both rights the message stays where it is.
resource "google_pubsub_subscription_iam_member" "undelivered" {
  project      = local.project
  subscription = "flights"
  role         = "roles/pubsub.subscriber"
  member       = local.pubsub_agent
}

# `stagingLocation` in a bucket of its own, and `metricsLocation`, checkpoint and table: list, read, create and delete objects.
resource "google_storage_bucket_iam_member" "stage" {
  for_each = toset(["my-staging-bucket", "my-bucket"])
  bucket   = each.value
  role     = "roles/storage.objectUser"
  member   = local.member
}

# `pubsub-spark backlog`, and alerts on the age of the backlog: metrics of Cloud Monitoring.
resource "google_project_iam_member" "measure" {
  project = local.project
  role    = "roles/monitoring.viewer"
  member  = local.member
}

# A topic with a key of your own (CMEK): Pub/Sub's service agent encrypts with it. The query needs no right on the key.
resource "google_kms_crypto_key_iam_member" "topic" {
  crypto_key_id = "projects/my-project/locations/europe-west1/keyRings/spark/cryptoKeys/pubsub"
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = local.pubsub_agent
}

# The same for Cloud Storage's service agent if the bucket of `stagingLocation` has a key of your own.
resource "google_kms_crypto_key_iam_member" "stage" {
  crypto_key_id = "projects/my-project/locations/europe-west1/keyRings/spark/cryptoKeys/staging"
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = local.storage_agent
}
