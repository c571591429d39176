"""Ratings from chat platforms. One module a platform says who speaks and what happened (`verify`, pure), and `dispatch`
what becomes of it. `resolve` says which completion is meant, and `routes` has the HTTP around them."""
