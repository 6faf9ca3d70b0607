"""A model behind HTTP.

`scoring` goes from request to response, `batcher` makes batches of images, `app` is the web server.
"""
