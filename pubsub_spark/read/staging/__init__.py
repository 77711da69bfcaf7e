"""The staging area: each batch is written here before Spark sees a row of it, so that it can be read again.

    area       `Staging`: the files of one stream, their names and their meaning. Start here
    part       the format of a part: messages, receipts, footer (pure)
    schemas    the schemas that batches were decoded with
    ids        sets of message ids, and the format of their files (pure)
    fencing    epochs: a later run of a query takes over the area of an earlier one
    streams    the streams with files in a location (CLI)
    store      `Store`: a folder or a prefix of an object store. The only module that does I/O

Used by the driver and by tasks. Imports nothing of the other folders of `read`.
"""
