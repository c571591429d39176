"""Ratings from chat platforms. One module a platform says who speaks and what happened (`verify`, pure), `dispatch`
what becomes of it, `finding` which completion is meant, `routes` the HTTP around them."""
