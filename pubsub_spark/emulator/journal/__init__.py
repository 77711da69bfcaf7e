"""The journal: the emulator's data directory, and how the emulator continues from it.

    commands        each call that changes the state, as plain data, and carrying it out again
    files           the files of a data directory, and their damage
    checkpoints     copying SQLite's write-ahead log into the database
    restoring       the state in a data directory
    __main__        the process that writes the next base
    journal         the thread that writes, and when a new base is due

The state is a function of the calls that changed it: no clock, no chance. So the log holds calls instead of their
effects. A base is the state at one row of the log.
"""
