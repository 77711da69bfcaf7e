"""The simulator: histories of crashes, suspensions, outages and late attempts, run against the real code of `read/`.

One seed is one history. Nothing here uses a thread, a socket, a real clock or a real pause: each simulated thread is a
greenlet, and time is a number. At every point where the code waits for something outside, the seed chooses the next
event. A seed therefore fails again in the same way.

    chooser      where decisions come from: a seed, or an enumeration of all of them
    hub          machines, processes, threads. The scheduler. Virtual time
    runtime      `Runtime` of a simulated process: clocks, locks, conditions, queues, threads
    service      Pub/Sub: the emulator's pure `Broker` behind RPCs that are slow, refused, or unanswered
    schemas      the schema of its topic, with revisions that come and go
    connection   `Connection` and `Backend` of a simulated process, the client's half of the service
    store        the staging area's store: in memory, create-only
    spark        Spark's micro-batch engine: both protocols, three triggers, retries, speculation, a sink
    faults       the faults of a history and their rates (a swarm: most are off)
    history      one history: faults first, then quiet runs that must deliver everything
    record       what happened, as the service, the store and Spark saw it. The timeline that is printed
    checkers     the invariants I1 to I6. They read the record and know nothing of the code
    cases        the cases of docs/guarantee.md that allow a repeated message
    shrink       a smaller history that breaks the same invariant
    scenarios    small histories with faults at any point, such as a crash and a late attempt
    exhaustive   all histories of each scenario
    mutations    faults put into the code. Each must be caught

    python -m tests.simulation --histories 10000 --seed 1 --jobs 2
"""
