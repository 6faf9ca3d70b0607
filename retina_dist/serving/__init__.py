"""A detector behind HTTP: what an answer is (`scoring`), images gathered into batches (`batcher`), the web server (`app`)."""
