"""The web page of the emulator: its resources, live, and forms that do the same as the API.

app        the ASGI application: the views by path, forms, headers against other sites
views      the contents of each view
messages   a message as a row: its content, its delivery state, its steps
rows       lists of resources and messages in pages
payloads   payloads as a person reads them, by the schema of their topic
forms      forms made of a schema, and the payloads that result
actions    the RPC or method of the emulator behind each form
live       samples of counters and charts, as server-sent events
templates  HTML, by Jinja2, which escapes everything
static     one stylesheet and one script
"""
