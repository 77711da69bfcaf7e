"""The journal: what the emulator keeps in its data directory, and how it begins again with that.

    commands        each call that changes the state, as plain data, and carrying it out again
    files           the files of a data directory: the log, the bases, the lock, what damage is
    checkpoints     copying SQLite's write-ahead log into the database, which nobody waits for
    restoring       the state that a data directory holds
    __main__        the process that writes the next base
    journal         the thread that writes, those who wait for it, and when a new base is due

The state is a function of the calls that changed it: no clock, no chance. So the log holds calls, a few bytes each
beside the published messages, and not what they did; a base is the state at one row of the log, and rows up to it are
deleted.
"""
