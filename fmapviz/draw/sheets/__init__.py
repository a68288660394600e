"""Pages of many pictures: tables, contact sheets, strips of top images."""
