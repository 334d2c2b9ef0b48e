"""Operations on workflow files: list, check, try, save, rename and delete them."""
