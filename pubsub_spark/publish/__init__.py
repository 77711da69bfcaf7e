"""The part that `write/` and the dead letters of `read/` share: messages in Arrow columns become publish requests.

limits        Pub/Sub's size limits, and the serialized size of each message
dead_letters  the messages that replace those that break a limit or cannot be decoded
requests      messages batched into serialized PublishRequests

Pure: nothing here sends a request. `write.publisher` and `read.dead_letters` do.
"""
