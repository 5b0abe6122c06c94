"""One revision a file. Each stands alone: it must not import the models, which move on."""
