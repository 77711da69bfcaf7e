"""AsyncAPI documents (2.x and 3.x, YAML or JSON) that say which topics, schemas and subscriptions there are.

    document   text to values with line numbers; `$ref` inside a document and to files
    bindings   the googlepubsub bindings, their versions and rules
    api        a document as what Pub/Sub has: schemas, topics, subscriptions, and messages
    plan       what is to be created and updated so that a project is as a document says
    export     the document of what a project has

Pure, but for the files that a document refers to; the calls on resources are `backend.admin`. Needs the extra
`asyncapi`.
"""
