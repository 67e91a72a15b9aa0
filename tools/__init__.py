"""Tools for developers; the product never imports them."""
