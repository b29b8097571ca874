"""The studio: a page on this machine on which one watches models write (`duality studio`).

    picture          a trace as an animated SVG (`duality trace`)
    share            a recording as one HTML file that plays
    limits           how much one request may ask for, and how errors are said
    fields           kinds of fields of a request: checked, and described for OpenAPI
    forms            which fields each request has
    patience         when work ends early
    library          the runs that are shown: found, listed, loaded when they are needed
    beliefs          what a model believes of each token while it writes
    generation       a request to write as a stream of steps
    scoring          a text under a model, token by token, and under the judge
    operator_table   the operator T of the paper as a table
    workers          a thread for each model, with a queue of limited length
    completion_form  the fields of OpenAI's completions
    completions      the interface of OpenAI's completions
    answers          JSON, events of a stream, errors
    jobs             work in the thread of a model, its events on their way to the client
    guard            who may ask: host, origin, token; the headers of every answer
    openapi          the description of the interface
    page_files       the files of the page
    app              the routes
    serving          where the server listens, and how it ends
    page/            what the browser shows: plain modules, no build step, nothing from elsewhere

Each module imports only from the modules above it; ``picture`` to ``completions`` know nothing of HTTP. What must hold:
a text of the page is that of `duality sample` with the same settings; a client that leaves ends its work; whatever is
sent, the answer is what was asked for or one sentence that says what is allowed.
"""
