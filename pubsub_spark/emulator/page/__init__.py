"""The web page of the emulator: what there is, live, and forms that do what the API does.

app        the ASGI application: which path is which view, forms, headers against other sites
views      what each view shows, gathered under the engine's lock as plain values
rows       lists of resources and messages in pages
payloads   payloads as a person reads them, by the schema of their topic
forms      forms made of a schema, and the payloads that come of them
actions    which RPC, or method of the emulator, each form stands for
live       samples of counters, once a second while somebody looks, as server-sent events and charts
templates  HTML, by Jinja2, which escapes everything
static     one stylesheet and one script; nothing is built, and nothing comes from elsewhere

Nothing of it is imported before the first page is asked for. The forms go through the dispatcher like every other call,
so there are no second rules.
"""
