"""What can be configured: the models of passerelle.yaml, where they are read, and what parts take of them."""
