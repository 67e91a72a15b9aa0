"""What developers run beside the product: never imported by it."""
