"""AsyncAPI documents (2.x and 3.x, YAML or JSON) that describe topics, schemas and subscriptions.

    document   text to values with line numbers. `$ref` inside a document and to files
    bindings   the googlepubsub bindings, their versions and rules
    api        a document's schemas, topics, subscriptions and messages
    plan       the resources to create and update, so that a project matches a document
    export     the document of a project's resources

Pure, except for the files that a document refers to. The calls on resources are `backend.admin`. Needs the extra
`asyncapi`.
"""
