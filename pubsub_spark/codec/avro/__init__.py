"""Avro: binary and JSON messages to columns, and columns to messages.

codec          what `codec.interface` asks for              types         a node's column, in Arrow
columns        all messages of a batch to Arrow             resolution    the rules for what was written otherwise
cursor_arrays  Arrow arrays of what cursors read            decimals      decimals between Avro and Arrow
decode         columns, and a reason for the rest           encode        rows to messages (byte_columns)
json           what the JSON reader and writer do with it
"""
