"""Over HTTP: the page that looks into models.

=============== =======================================================================
guard           what every request passes first: who asks, from where, how much
bodies          requests read within their limits, by closed schemas
runs            runs that were asked for, the last ones kept; models work one at a time
look            the routes of the page
listening       from a port to a server that stops by itself
=============== =======================================================================
"""
