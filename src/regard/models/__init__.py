"""Model families, one file each: settings, module, published sizes, registration."""
