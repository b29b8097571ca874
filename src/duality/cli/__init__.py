"""The ``duality`` command: typed functions that call the library and print what it returns.

    main       parses the arguments, runs a command, turns an error into one line and an exit code
    commands   the commands by name
    common     kinds of arguments that commands share
    train      train, distill         sample     sample
    evaluate   eval                   quality    quality, plot
    compare    compare                lists      recipes, data
    variance   variance               publish    publish
    console    progress bars and messages on stderr
    watch      the live view of sampling
    trace      a file with every step of every sample

Modules that import torch are imported inside the commands, so that ``--help`` is immediate.
"""
