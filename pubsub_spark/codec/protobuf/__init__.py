"""Protocol Buffers: binary and JSON messages to columns, and columns to messages.

codec          what `codec.interface` asks for                 types         a column's type in Arrow
column_tree    a message's descriptor as a tree of columns     ptars_schema  the schema given to `ptars`
decode         payloads to columns                             encode        columns to payloads
column_arrays  the arrays that ptars makes, as columns         json          what the JSON reader and writer do with it
"""
