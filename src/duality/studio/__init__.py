"""The studio: a page on this machine on which one watches models write (`duality studio`).

    schemas      the requests and their limits, checked by pydantic; refusals
    library      the runs that are shown: found, listed, loaded when they are needed
    generation   a request to write as a stream of steps, with the model's beliefs; a text under a model and the judge
    completions  the interface of OpenAI's completions
    server       where the server listens, who may ask; answers, events of a stream, errors
    queues       work for each model, one after another; events on their way to the clients
    app          the addresses of the interface and their description, the files of the page
    page/        what the browser shows: plain modules, no build step, nothing from elsewhere

Each module imports only from the modules above it; ``schemas`` to ``completions`` know nothing of HTTP. What must hold:
a text of the page is that of `duality sample` with the same settings; a client that leaves ends its work; whatever is
sent, the answer is what was asked for or one sentence that says what is allowed.
"""
