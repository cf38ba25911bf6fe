"""Pages of pictures: orders, grids, the gallery, uploads. Read `generate_page` first."""
