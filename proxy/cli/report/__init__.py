"""`rlproxy report`: what was rated and what each version learned, in one HTML file that needs no network.

`sources` reads it, from the running proxy or read-only from the home. `gather` makes of it the report's data, and
`pairs` finds replies of different versions to one prompt. Not here: the options (command).
"""
