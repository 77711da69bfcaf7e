"""Avro: binary and JSON messages to columns, and columns to messages.

codec          what `codec.interface` asks for              types         a node's column, in Arrow
columns        all messages of a batch to Arrow             decimals      decimals between Avro and Arrow
cursor_arrays  Arrow arrays of what cursors read            byte_columns  the buffers that messages are joined from
decode         columns, and a reason for the rest           encode        rows to messages
json           what the JSON reader and writer do with it
"""
