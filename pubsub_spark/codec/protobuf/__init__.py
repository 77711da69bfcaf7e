"""Protocol Buffers: binary and JSON messages to columns, and columns to messages.

codec          the functions of `codec.interface`              types         a column's type in Arrow
column_tree    a message's descriptor as a tree of columns     ptars_schema  the schema made for `ptars`
decode         payloads to columns                             encode        columns to payloads
column_arrays  the arrays that ptars makes, as columns         json          the plans and writers of JSON messages
"""
