"""Avro: binary and JSON messages to columns, and columns to messages.

codec          the functions of `codec.interface`           types         a node's column, in Arrow
columns        all messages of a batch to Arrow             decimals      decimals between Avro and Arrow
cursor_arrays  Arrow arrays of the values at cursors        byte_columns  the buffers that messages are joined from
decode         columns, and a reason for the rest           encode        rows to messages
json           the plans and writers of JSON messages
"""
