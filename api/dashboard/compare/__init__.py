"""The page that compares jobs: what got slower from one to another, and why.

`view` is what it says, `page` makes that and is its route; `sides` are the jobs as they are compared, `rows` their
tasks side by side, `verdict` what to make of it in words. `page.html` is the head and the tabs, `TAB.html` what a tab
says.
"""
