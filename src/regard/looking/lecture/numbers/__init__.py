"""What the pictures of lectures show, computed: each function is also the lines of Python that a page prints.

So these functions take no arguments but sizes with defaults, use only what a reader can import, and end in a return of
plain names; see :mod:`regard.looking.lecture.listing`.
"""
