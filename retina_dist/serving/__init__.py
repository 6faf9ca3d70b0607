"""A detector behind HTTP: what an answer is (`scoring`), pictures gathered into batches (`batcher`), the web server (`app`)."""
