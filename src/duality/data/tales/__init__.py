"""Tales: a small language whose truth is known, as a corpus that is generated on the spot.

language   the levels, the choices of a story and their probabilities, the text of a story
reading    the parser: from any text to its choices, and which of its dependencies are broken
corpus     stories for training and for validation, which share no story, as files of the cache
"""
