"""A model behind HTTP: from request to response (`scoring`), batches of images (`batcher`), the web server (`app`)."""
